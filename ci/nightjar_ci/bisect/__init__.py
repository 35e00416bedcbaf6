"""Which rung of a ladder made a test fail or a metric worse, and how sure is that?"""
