"""Does the gate of programs compiled ahead of time name what was broken, and keep quiet where nothing was?"""
