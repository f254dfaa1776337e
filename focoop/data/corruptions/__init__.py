"""The 19 corruptions of CIFAR-C at five severities, with the published strengths."""
