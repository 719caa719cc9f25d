"""Embeddings of all-MiniLM-L6-v2 from nothing but NumPy, the safetensors file and the vocabulary.

Shares no code with ``model.py`` or reexport, so that ``check.py`` compares with something independent.
"""

from __future__ import annotations

import json
import math
import unicodedata
from pathlib import Path

import numpy as np

HEADS, EPSILON = 12, 1e-12


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Name -> array, of a file with float32 and int64 arrays: eight bytes of length, a JSON header, the data."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {
        name: np.frombuffer(
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
            {"F32": "<f4", "I64": "<i8"}[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def tokenize(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Numbers of the word pieces of ``text``, between those of [CLS] and [SEP]: lower case, without accents."""
    letters = [letter for letter in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(letter) != "Mn"]
    spaced = "".join(f" {letter} " if _stands_alone(letter) else letter for letter in letters)
    pieces = [piece for word in spaced.split() for piece in _pieces(word, vocabulary)]
    return [vocabulary[piece] for piece in ("[CLS]", *pieces, "[SEP]")]


def _stands_alone(letter: str) -> bool:
    # BERT counts every ASCII sign that is no letter or digit as punctuation, and Chinese characters as words
    ascii_sign = letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " "
    return ascii_sign or unicodedata.category(letter).startswith("P") or 0x4E00 <= ord(letter) <= 0x9FFF


def _pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    """The longest pieces that the vocabulary has, from the left; continued ones start with ##."""
    found: list[str] = []
    while word:
        prefix = "##" if found else ""
        length = next((n for n in range(len(word), 0, -1) if prefix + word[:n] in vocabulary), 0)
        if not length:
            return ["[UNK]"]
        found.append(prefix + word[:length])
        word = word[length:]
    return found


def embed(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The embedding f32[384] of one text, computed in float64."""

    def linear(hidden: np.ndarray, name: str) -> np.ndarray:
        return hidden @ weights[f"{name}.weight"].astype(np.float64).T + weights[f"{name}.bias"]

    def normalise(hidden: np.ndarray, name: str) -> np.ndarray:
        centred = hidden - hidden.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return centred / scale * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]

    hidden = weights["embeddings.word_embeddings.weight"][tokens].astype(np.float64)
    hidden += weights["embeddings.position_embeddings.weight"][: len(tokens)]
    hidden += weights["embeddings.token_type_embeddings.weight"][0]
    hidden = normalise(hidden, "embeddings")
    layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
    for layer in (f"encoder.layer.{number}" for number in range(layers)):
        query, key, value = (
            np.split(linear(hidden, f"{layer}.attention.self.{name}"), HEADS, axis=-1)
            for name in ("query", "key", "value")
        )
        heads = []
        for q, k, v in zip(query, key, value, strict=True):
            scores = np.exp(q @ k.T / math.sqrt(q.shape[-1]))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v)
        mixed = linear(np.concatenate(heads, axis=-1), f"{layer}.attention.output.dense")
        hidden = normalise(hidden + mixed, f"{layer}.attention.output")
        inner = linear(hidden, f"{layer}.intermediate.dense")
        inner *= 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        hidden = normalise(hidden + linear(inner, f"{layer}.output.dense"), f"{layer}.output")
    mean = hidden.mean(0)
    return (mean / np.linalg.norm(mean)).astype(np.float32)
