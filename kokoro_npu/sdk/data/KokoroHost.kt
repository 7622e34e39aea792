// The host's steps between Kokoro's models, as a reference: repeat, choose, pad, mask, trim, and the source's draws.
// Plain Kotlin without a library. reference/host_vectors.txt holds inputs and results of every step; HostCheck.kt compares
// them to the bit. The same steps in Python: kokoro_npu/host (tokens, steps, source_noise).
//
// Arrays are flat and row-major, the leading dimension of 1 left out: [1, C, L] is C rows of L values.
// S: tokens, L: real frames (the sum of the durations), T: frames of the bucket, C: channels.

object KokoroHost {
    const val SAMPLE_RATE = 24_000
    const val SAMPLES_PER_FRAME = 600
    const val BOUNDARY_TOKEN = 0L
    const val MAX_PHONEMES = 510

    /** Token ids [1, S] of an utterance's phonemes: a boundary token, the phonemes' ids, a boundary token. */
    fun tokens(ids: LongArray): LongArray {
        require(ids.size in 1..MAX_PHONEMES) { "${ids.size} phonemes; between 1 and $MAX_PHONEMES fit: split the text" }
        return longArrayOf(BOUNDARY_TOKEN) + ids + longArrayOf(BOUNDARY_TOKEN)
    }

    /** The row [1, columns] of a voice [510, columns] for an utterance: that of its number of phonemes less one. */
    fun voiceRow(pack: FloatArray, columns: Int, phonemes: Int): FloatArray =
        pack.copyOfRange((phonemes - 1) * columns, phonemes * columns)

    /** Each token's features [1, S, C] repeated by its duration, as channels [1, C, L]. */
    fun align(features: FloatArray, durations: IntArray): FloatArray {
        val channels = features.size / durations.size
        val frames = durations.sum()
        val aligned = FloatArray(channels * frames)
        var frame = 0
        for ((token, duration) in durations.withIndex()) {
            repeat(duration) {
                for (channel in 0 until channels) {
                    aligned[channel * frames + frame] = features[token * channels + channel]
                }
                frame++
            }
        }
        return aligned
    }

    /** The smallest bucket that holds so many frames; a text that fits none must be split. */
    fun selectBucket(frames: Int, buckets: Collection<Int>): Int =
        buckets.filter { it >= frames }.minOrNull()
            ?: throw IllegalArgumentException("$frames frames do not fit any bucket: split the text")

    /** Rows of values, each continued with zeros to a width. */
    fun pad(values: FloatArray, rows: Int, width: Int): FloatArray {
        val length = values.size / rows
        require(length <= width) { "$length values do not fit a width of $width" }
        val padded = FloatArray(rows * width)
        for (row in 0 until rows) values.copyInto(padded, row * width, row * length, (row + 1) * length)
        return padded
    }

    /** [1, 1, T]: 1 on real frames, else 0. */
    fun frameMask(frames: Int, bucket: Int): FloatArray = FloatArray(bucket) { if (it < frames) 1f else 0f }

    /**
     * [1, 6]: padded over real length, its root and its inverse root; of frames (T / L), then of the generator's steps
     * ((120 T + 8) / (120 L + 1)). In double precision, rounded once at the end.
     */
    fun frameRatio(frames: Int, bucket: Int): FloatArray {
        val ratios = doubleArrayOf(
            bucket.toDouble() / frames,
            (120L * bucket + 8).toDouble() / (120L * frames + 1),
        )
        return ratios.flatMap { listOf(it, Math.sqrt(it), 1.0 / Math.sqrt(it)) }.map { it.toFloat() }.toFloatArray()
    }

    /** The 600 L real samples of a bucket's audio. */
    fun trim(audio: FloatArray, frames: Int): FloatArray = audio.copyOf(SAMPLES_PER_FRAME * frames)

    /**
     * Unit Gaussian draws [1, 1, 600 L] of the source of one utterance: SplitMix64 from seed + index, then Marsaglia's
     * polar method with a logarithm of basic operations, which round in one way only.
     */
    fun sourceNoise(seed: Long, index: Long, count: Int): FloatArray {
        var state = seed + index
        fun coordinate(): Double {
            state += -0x61c8864680b583ebL
            var z = state
            z = (z xor (z ushr 30)) * -0x40a7b892e31b1a47L
            z = (z xor (z ushr 27)) * -0x6b2fb644ecceee15L
            z = z xor (z ushr 31)
            return (z ushr 11).toDouble() * TWO_TO_MINUS_52 - 1.0
        }
        val draws = FloatArray(count)
        var at = 0
        while (at < count) {
            val u = coordinate()
            val v = coordinate()
            val s = u * u + v * v
            if (s >= 1.0 || s <= 0.0) continue
            val factor = Math.sqrt(-2.0 * ln(s) / s)
            draws[at++] = (u * factor).toFloat()
            if (at < count) draws[at++] = (v * factor).toFloat()
        }
        return draws
    }

    /** Natural logarithm of a positive normal number: e ln 2 + 2 (t + t³/3 + … + t²⁹/29), t = (m − 1) / (m + 1). */
    fun ln(x: Double): Double {
        var e = Math.getExponent(x) + 1
        var m = Math.scalb(x, -e) // in [½, 1)
        if (m < SQRT_HALF) {
            m += m
            e -= 1
        }
        val t = (m - 1.0) / (m + 1.0)
        val square = t * t
        var total = 1.0 / 29
        for (term in 13 downTo 0) total = total * square + 1.0 / (2 * term + 1)
        return e * LN2 + 2.0 * t * total
    }

    private const val TWO_TO_MINUS_52 = 2.220446049250313e-16
    private const val LN2 = 0.6931471805599453
    private const val SQRT_HALF = 0.7071067811865476
}
