"""Programs and a checkpoint that show the whole path at work; nothing in the library depends on them.

- :mod:`model`: a decoder transformer's decode step, a few hundred MB of weights by default.
- :mod:`tiny`: a next-token step over a handful of arrays of many dtypes.
- :mod:`checkpoint`: writes the decoder's weights the way a training run would, with stock Orbax.
"""
