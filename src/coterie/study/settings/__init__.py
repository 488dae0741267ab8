"""Settings that are chosen automatically: steps, their size, decay, batches and rounds.

A linear model takes steps on all of a client's data, without momentum, of size 1 / L_i,
where L_i is the curvature of the client's loss. Its weight decay is k / n for n samples
behind a model. One k serves all clients and methods. To find it, models are trained on
one half of every client's training data and scored on the other half, and the k with
the best mean score is taken. For models that clients share, FedAvg is trained and
scored in the same way; their k is at most that of own models. Any other model takes
steps of Adam on minibatches. All methods stop at the same round, when none of them
improves.

What a study sets itself is not changed. What was found is stored with the run.
"""
