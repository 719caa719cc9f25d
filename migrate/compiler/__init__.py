"""Target -> signature and executable, ahead of time and without the target's hardware.

- :mod:`driver` turns whatever happens to a compile subprocess into a result or a typed error; :mod:`process` runs it
  within its limits; :mod:`parallel` runs several. No jax.
- :mod:`observe` is that subprocess, and watches what it reads; :mod:`worker` is the work in it; :mod:`request` holds
  what the two sides tell each other through files.
- :mod:`cached` finds a compile again in the :mod:`cache`: if what it read (:mod:`inputs`) has the same :mod:`digests`.
- :mod:`toolchains` provides versions of libtpu, :mod:`interpreters` those of jax; :mod:`flags` checks the flags that a
  target sets. No jax.
- :mod:`topology` and :mod:`mesh` turn the target's names into devices and a mesh.
- :mod:`saved` makes a program of a ``jax.export`` artifact instead of the model's code.
- :mod:`arguments` checks the program's abstract arguments, leaf by leaf.
- :mod:`policies` says which layout each array may have; :mod:`settle` compiles until every one is allowed.
- :mod:`aot` lowers, compiles and exports them; :mod:`describe` reads the signature off the result.
- :mod:`executable` stores a compiled program as bytes.
- :mod:`failures` turns what tracing and compiling raise into typed errors with the compiler's words.

Importing this package imports neither jax nor libtpu.
"""

from migrate.compiler.driver import CompileResult, compile_program
from migrate.compiler.parallel import compile_all

__all__ = ["CompileResult", "compile_all", "compile_program"]
