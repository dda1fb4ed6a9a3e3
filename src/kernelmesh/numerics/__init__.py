"""Arrays in, arrays out: nothing here reads, writes, prints or waits."""
