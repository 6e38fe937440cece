"""The life of one trial: prepare, session, freeze, grade, preserve. Needs no pytest: `trial.run.run(trial, context)`."""
