"""`python -m isocompute` is `isocompute`."""

from isocompute.cli.main import main

main()
