"""What a malicious client does: one file per attack (or per family with the same maths), which registers itself.

`parts` has the kinds, by what they know and change; `build` makes an attack from an experiment's settings.
None knows the defence.
"""
