"""Log formats, one file each; a reader is listed in `isocompute.data.discover.READERS`."""
