"""Guests of science: inference, transport, linear algebra, molecules, geometry and quanta, one program each."""
