"""Certified networks on real images: `python -m examples.certified`, from the root.

`cli` is the command, `recipes` what can be trained and how, `training` one run, `report` the table.
"""

from .. import console as console  # first: it keeps TensorFlow's start-up log away
