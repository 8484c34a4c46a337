"""OpenVINO GenAI on a GGUF file, plain and by prompt lookup.

Its reader (2026.4) fails on Q5_0 with "gguf_tensor_to_f16 failed".  `widened` makes a file with Q8_0 in its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.answers import Answer, Decode, Setup, answer_of_pieces, chosen

# Proposed tokens and length of the n-gram, as in OpenVINO GenAI's own example of prompt lookup.
METHODS: dict[str, dict[str, int]] = {"plain": {}, "prompt lookup": {"num_assistant_tokens": 5, "max_ngram_size": 3}}
# A block of Q5_0: a scale of two bytes, the fifth bits of 32 codes, and their lower four bits.
BLOCK, SCALE, HIGH, CODES = 22, 2, 4, 32


def methods_of(setup: Setup) -> Iterator[tuple[str, Decode]]:
    """Yields plain decoding and prompt lookup; the file is loaded for each.

    Raises:
        ValueError: a method is unknown, or OpenVINO cannot read the file.
    """
    import openvino_genai

    for name in chosen(setup.methods, METHODS):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # prompts of a suite begin alike
        scheduler.max_num_batched_tokens = setup.longest + setup.new
        options = {"scheduler_config": scheduler, "INFERENCE_NUM_THREADS": setup.threads}
        if METHODS[name]:
            options["prompt_lookup"] = True
        try:
            pipeline = openvino_genai.LLMPipeline(setup.file, "CPU", **options)
        except RuntimeError as error:
            raise ValueError(
                f"OpenVINO GenAI cannot read {setup.file}: {str(error).splitlines()[-1]}. If the file has "
                "Q5_0 tensors, give the copy that `python -m benchmarks engines widen` writes."
            ) from error
        decode(pipeline, METHODS[name], 4, range(100, 116))
        yield name, partial(decode, pipeline, METHODS[name], setup.new)


def decode(pipeline: Any, how: dict[str, int], new: int, ids: Sequence[int]) -> Answer:
    """Continues a prompt greedily.  how: fields of the generation's configuration"""
    import numpy
    import openvino
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = new
    config.ignore_eos = True
    config.do_sample = False
    for key, value in how.items():
        setattr(config, key, value)
    pieces: list[tuple[float, list[int]]] = []

    class Pieces(openvino_genai.StreamerBase):  # type: ignore[misc]
        """Notes when the new tokens of each pass came."""

        def write(self, tokens: int | Sequence[int]) -> Any:
            pieces.append((time.perf_counter(), [tokens] if isinstance(tokens, int) else list(tokens)))
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Does nothing: no token is held back."""

    prompt = openvino.Tensor(numpy.array([list(ids)], dtype=numpy.int64))
    began = time.perf_counter()
    pipeline.generate(prompt, config, streamer=Pieces())
    return answer_of_pieces(pieces, began)


def widened(file: Path, out: Path) -> None:
    """Writes a copy of a GGUF file with Q8_0 in place of Q5_0: the same scales and codes, so the same numbers."""
    import gguf

    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q5_0:
            writer.add_tensor(tensor.name, q8_of_q5(tensor.data), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def q8_of_q5(rows: Any) -> Any:
    """Returns the bytes of Q8_0 with the numbers of Q5_0.  rows: bytes of Q5_0, [rows, bytes]"""
    import numpy

    blocks = rows.reshape(-1, BLOCK)
    high = blocks[:, SCALE : SCALE + HIGH].copy().view("<u4")
    fifth = (high >> numpy.arange(CODES, dtype=numpy.uint32)) & 1
    low = blocks[:, SCALE + HIGH :]
    codes = numpy.concatenate([low & 15, low >> 4], axis=1) | (fifth << 4).astype(numpy.uint8)
    signed = codes.astype(numpy.int8) - numpy.int8(16)
    wide = numpy.concatenate([blocks[:, :SCALE], signed.view(numpy.uint8)], axis=1)
    return wide.reshape(len(rows), -1)
