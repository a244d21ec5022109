"""What the commands that train share: `examples.paper` and `examples.certified`.

`command` has their options and the order of events, `training` one run that can be killed at any
moment, `records` the lines of JSON and their tables, `pages` what pages of results are made with.
"""

from .. import console as console  # first: it keeps TensorFlow's start-up log away
