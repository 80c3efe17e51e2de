"""Who may do what: keys, signatures, enrolment, and the guard in front of Flower's SuperLink."""
