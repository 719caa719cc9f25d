"""Signatures as compilers make them, and worse ones: those that only a hostile file could hold."""

from __future__ import annotations

from migrate.signature import DeviceMemory, Fingerprint, ParameterSpec, Signature

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}",
    "\u202egnp.exe",
    "line\nbreak",
    "\ud800 alone",
    "]]>&amp;\u2028",
    "'\"`${alert(1)}",
]
"""Names of parameters that try to be something else."""


def parameter(*path: str, number: int = 0, argument: str = "params", **fields: object) -> ParameterSpec:
    """The parameter of the E0102 message, in four shards of its last dimension but one, unless ``fields`` say else."""
    values: dict[str, object] = {
        "shape": (16, 1280, 40),
        "dtype": "bfloat16",
        "partition": ((), ("model",), ()),
        "shard_shape": (16, 320, 40),
        "major_to_minor": (0, 1, 2),
        "tiles": ((8, 128), (2, 1)),
        "is_weight": argument == "params",
    }
    return ParameterSpec(
        number=number,
        argument=argument,
        path=path,
        sequence_levels=(False,) * len(path),
        **(values | fields),  # type: ignore[arg-type]
    )


def signature(parameters: list[ParameterSpec], **fingerprint: object) -> Signature:
    values: dict[str, object] = {
        "stablehlo_sha256": "ab" * 32,
        "topology": "v5e:2x4",
        "mesh": (("data", 2), ("model", 4)),
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
        "libtpu": "0.0.42.1",
        "flags": (),
        "layout_policy": "auto",
    }
    return Signature(
        program="decode",
        parameters=tuple(parameters),
        fingerprint=Fingerprint(**(values | fingerprint)),  # type: ignore[arg-type]
        memory=DeviceMemory(sum(p.device_bytes for p in parameters), 4096, 1 << 20, 1 << 16),
    )


def odd() -> list[ParameterSpec]:
    """Shapes and layouts at the edges of what there is to draw."""
    flat = {"partition": ((),), "major_to_minor": (0,)}
    return [
        parameter("scalar", shape=(), partition=(), shard_shape=(), major_to_minor=(), tiles=((128,),)),
        parameter("empty", shape=(0, 4), partition=((), ()), shard_shape=(0, 4), major_to_minor=(1, 0)),
        parameter("vector", shape=(1000,), shard_shape=(1000,), tiles=((1024,), (128,), (2, 1)), **flat),
        parameter("untiled", tiles=()),
        parameter("merged", tiles=((-1, 8, 128),)),
        parameter("packed", dtype="int4", tiles=((8, 128), (8, 1)), element_bits=4),
        parameter("host", memory_kind="pinned_host"),
        parameter(
            "rank7",
            shape=(2,) * 7,
            partition=(("data",), ("model",), (), (), (), (), ()),
            shard_shape=(1, 1, 2, 2, 2, 2, 2),
            major_to_minor=(6, 5, 4, 3, 2, 1, 0),
        ),
        parameter("both", shape=(64,), partition=(("data", "model"),), shard_shape=(8,), major_to_minor=(0,)),
        parameter("no such axis", partition=(("nowhere",), (), ())),
    ]


def many(count: int) -> Signature:
    """A model of ``count`` parameters in layers, most of them alike."""
    made = []
    for number in range(count):
        layer, kind = divmod(number, 20)
        # a width of its own now and then, so that there are hundreds of layouts, not one
        width = 64 * (1 + (kind + layer // 50) % 40)
        made.append(
            parameter(
                "layers",
                str(layer),
                f"block_{kind}",
                "kernel",
                number=number,
                shape=(1024, width),
                partition=(("model",), ()),
                shard_shape=(256, width),
                major_to_minor=(0, 1) if kind % 3 else (1, 0),
            )
        )
    return signature(made)
