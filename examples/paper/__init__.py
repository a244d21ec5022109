"""The paper's experiments: `python -m examples.paper`, from the root of the repository.

`cli` is the command, `recipes` what the paper trained and reports, `training` one run, `tuning` and
`suspects` the trials around it, `report` and `trial_report` the tables and figures, `results_page`
the page of results.
"""

from .. import console as console  # first: it keeps TensorFlow's start-up log away
