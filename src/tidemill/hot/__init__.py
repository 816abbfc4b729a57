"""The few loops that must touch every record, compiled where there is a C compiler (D14).

Each module is an ordinary `.py` with a `.pxd` beside it that gives Cython the C types. Where the
extension could not be built the same `.py` runs as it is, slower. `hot` imports nothing of ours;
`tidemill.core.compiled` lists its modules.
"""
