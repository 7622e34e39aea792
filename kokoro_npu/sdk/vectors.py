"""Test vectors of the host's steps, made by this project's own, for implementations in other languages.

A text that any language reads without a library. Cases are blocks of lines between blank lines; a block's first line
is the step, each further line a name and its values. Floats are the eight hexadecimal digits of their float32 bits, so
that "equal" means equal to the bit; integers are decimal.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kokoro_npu.geometry import Bucket
from kokoro_npu.host.source_noise import speech_noise
from kokoro_npu.host.steps import align, frame_ratio, pad_to_bucket, select_bucket, trim
from kokoro_npu.host.tokens import tokenize, voice_row

_HEADER = """\
# Test vectors of the host's steps (kokoro_npu/sdk/vectors.py). Floats: hexadecimal float32 bits; integers: decimal.
# Arrays are row-major. Every implementation must give the values of `expected` to the bit.
"""

Values = npt.NDArray[np.float32] | npt.NDArray[np.int64] | list[int] | int


def cases() -> Iterator[tuple[str, dict[str, Values]]]:
    """Every case: the step's name, and its arguments and result by name."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32)

    for durations in ([1, 1, 1], [3, 0, 2], [1, 7, 50, 1], [0, 0, 4], [5]):
        encoded = floats(1, len(durations), 6)
        aligned = align(encoded, np.array([durations], dtype=np.int32))
        yield "align", {"features": encoded, "durations": durations, "expected": aligned}

    buckets = [1800, 120, 400]
    for frames in (1, 119, 120, 121, 400, 401, 1800):
        yield "select_bucket", {"frames": frames, "buckets": buckets, "expected": select_bucket(frames, buckets).frames}

    for frames, size in ((1, 2), (3, 3), (5, 7)):
        features = {
            "aligned_features": floats(1, 512, frames),
            "f0_contour": floats(1, 1, 2 * frames),
            "energy": floats(1, 1, 2 * frames),
            "noise": np.pad(floats(1, 22, 120 * frames + 1), ((0, 0), (0, 0), (0, 7))),
            "ref_style": floats(1, 128),
        }
        padded = pad_to_bucket(features, Bucket(size))
        # A channel or two of the wide inputs: what is done to one is done to each.
        for name, rows in (("aligned_features", 2), ("f0_contour", 1), ("energy", 1), ("noise", 1)):
            before, after = features[name][0, :rows], padded[name][0, :rows]
            yield "pad", {"rows": rows, "width": after.shape[1], "values": before, "expected": after}
        yield "frame_mask", {"frames": frames, "bucket": size, "expected": padded["frame_mask"]}

    for frames, size in ((1, 120), (30, 120), (95, 120), (120, 120), (121, 400), (1729, 1800), (7, 6144)):
        yield "frame_ratio", {"frames": frames, "bucket": size, "expected": frame_ratio(frames, Bucket(size))}

    for frames, size in ((1, 2), (2, 2)):
        audio = floats(1, 600 * size)
        yield "trim", {"frames": frames, "audio": audio, "expected": trim(audio, frames)}

    ids = [3, 5, 16]
    vocab = dict(zip("ab ", ids, strict=True))
    for phonemes in ("a", "ab a"):
        tokens = tokenize(phonemes, vocab, "vectors")
        yield "tokens", {"ids": [vocab[symbol] for symbol in phonemes], "expected": tokens}

    pack = floats(510, 256)[:, :3]
    for count in (1, 7, 510):
        row = voice_row({"voice": pack}, "voice", "a" * count)
        yield "voice_row", {"phonemes": count, "columns": 3, "pack": pack[:count], "expected": row}

    for seed, index, count in ((0, 0, 600), (1, 0, 7), (20_260_101, 3, 1200), (2**63 - 1, 5, 64)):
        draws = speech_noise(seed, index)(count)
        yield "source_noise", {"seed": seed, "index": index, "count": count, "expected": draws}


def vectors_text() -> str:
    """The file of all cases; the same text each time."""
    blocks = []
    for step, values in cases():
        lines = [step, *(f"{name} {_words(value)}" for name, value in values.items())]
        blocks.append("\n".join(lines) + "\n")
    return _HEADER + "\n" + "\n".join(blocks)


def _words(value: Values) -> str:
    array = np.asarray(value)
    if array.dtype == np.float32:
        return " ".join(f"{bits:08x}" for bits in array.reshape(-1).view(np.uint32).tolist())
    return " ".join(str(number) for number in array.reshape(-1).tolist())
