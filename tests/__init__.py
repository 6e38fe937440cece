"""The tests of pytest-codeprobe; a package so that tests can import the parts that they share."""
