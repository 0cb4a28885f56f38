"""What a malicious client does: one file per attack (or per family with the same maths), which registers itself.

`parts` has the four kinds, by what they know and change; `build` makes an attack from an experiment's settings. Those
that know a rule or the whole defence say so, and try it out (`search`).
"""
