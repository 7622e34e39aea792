"""Text to speech with the split model: what an SDK does around it, as a reference that is tested against PyTorch.

``alphabet``     Kokoro's phoneme alphabet: which symbols it has.
``evaluation``   How good the runtime is: against PyTorch, sentence by sentence, and how soon it sounds.
``joining``      Utterances to one signal: no click at a joint, and pauses as within an utterance.
``models``       Which files speak: those of a build (artifacts/).
``npu``          Decoders on Qualcomm's NPU: context binaries through ONNX Runtime's QNN provider.
``phonemizer``   Text to Kokoro's phonemes, offline: misaki's English front end where its tagger is installed.
``sound``        The loudspeaker: speech is played while it is made.
``synthesizer``  Phonemes and a voice to audio: the whole path through the split model.
``utterances``   Phonemes to utterances: whole sentences where they fit, else cut at clauses.
"""
