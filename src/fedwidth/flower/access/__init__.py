"""Who may do what: keys, signatures, enrolment, and the guard before Flower."""
