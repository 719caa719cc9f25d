"""Load the export of ``embedding.yaml`` and compare it with the reference:

``python examples/embedding/check.py out/embedding-cpu out/minilm``
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before jax starts

import numpy as np
import reference

import migrate

SENTENCES = (
    "A TPU program expects each weight in one physical layout.",
    "Every parameter has a memory layout that the accelerator's executable fixes.",
    "Le café est fermé le lundi.",
    "On Mondays the café is closed.",
    "Bread is baked from flour, water, yeast and salt.",
    "Unbelievably, re-exporting took 3.14 seconds!",
)
TOLERANCE = 1e-5
"""Of a component of a vector of unit length; both sides start from the same float32 weights."""


def main(export: str, model: Path) -> None:
    """Print how far apart the embeddings are, and which sentences are alike. SystemExit if they are not the same."""
    program = migrate.load(export)
    batch = next(spec.shape for spec in program.signature.parameters if spec.argument == "tokens")
    tokens, mask = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
    vocabulary = {piece: number for number, piece in enumerate((model / "vocab.txt").read_text().splitlines())}
    rows = [reference.tokenize(sentence, vocabulary) for sentence in SENTENCES]
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        mask[index, : len(row)] = 1
    found = np.asarray(program(program.params, tokens, mask))[: len(rows)]

    weights = reference.read_safetensors(model / "model.safetensors")
    expected = np.stack([reference.embed(weights, row) for row in rows])
    for sentence, row, one, other in zip(SENTENCES, rows, found, expected, strict=True):
        print(f"{len(row):2} tokens  differs by {np.abs(one - other).max():.1e}  {sentence}")
    likeness = found @ found.T - 2 * np.eye(len(rows))
    for index in (0, 2):
        nearest = int(likeness[index].argmax())
        print(f"nearest to {SENTENCES[index]!r}: {SENTENCES[nearest]!r} ({likeness[index, nearest]:.2f})")
    if not np.abs(found - expected).max() < TOLERANCE:
        raise SystemExit(f"the embeddings differ by more than {TOLERANCE}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", help="what embedding.yaml wrote")
    parser.add_argument("model", type=Path, help="what fetch.py wrote")
    arguments = parser.parse_args()
    main(arguments.export, arguments.model)
