"""Evaluation of every client's model: own classes, all classes, shifted images and detection.

`evaluate.py` asks every client's model about the sets of `sets.py`, one client after the other
(`answers.py`) or on a GPU all at once (`together.py`), and `rows.py` turns answers into numbers.

For each client: accuracy on its own test images over all C classes (the paper's ACC), accuracy on
everybody's test images, accuracy under corruption, detection of each OOD set, the cross-client
alarm, the share of other clients' ID images it flags when it keeps 95% of its own, and the frontier
between own and other classes as a bias on its own classes varies (`functional/frontier.py`). Where
there are test images that no client owns, of classes without training images, accuracy on these.
The threshold of the alarm comes from calibration images; without any, from a client's test images.
"""
