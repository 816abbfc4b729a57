"""The few loops that must touch every record, compiled where there is a C compiler (ADR 0005).

Each module is an ordinary `.py` with a `.pxd` beside it that gives Cython the C types. Where the
extension could not be built, the same `.py` runs interpreted, slower. `disk_worker` is no loop over
records but needs the compiler too, to run threads without the interpreter: it has a `.pyx` beside a
`.py` of the same names. `hot` imports no other package of Tidemill; `tidemill.core.compiled` lists
its modules.
"""
