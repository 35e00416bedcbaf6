"""Running the test on one rung and classifying the result: pass, fail, or unusable."""
