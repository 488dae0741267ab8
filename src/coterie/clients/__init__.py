"""Who answers: gradients of many models at once, minibatches, and simulated clients."""
