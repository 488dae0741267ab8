"""The inputs of an algorithm that are made from data: sizes, weights, biases, ...

The positional parameters of an algorithm's factory are ingredients. Each ingredient has
a recipe here. A recipe makes it from a short text in the study, such as
`weights = "clusters"`, and from a context: the clients, the model and the graph.
"""

from ...names import publish
from .contexts import Context as Context
from .contexts import file_of as file_of
from .links import edges_between as edges_between
from .recipes import OF_MODELS as OF_MODELS
from .recipes import RECIPES as RECIPES
from .recipes import Ingredients as Ingredients
from .recipes import cached_ingredients as cached_ingredients
from .recipes import can_have_noise as can_have_noise
from .recipes import ingredients_of as ingredients_of
from .recipes import is_from_data as is_from_data
from .recipes import is_from_truth as is_from_truth

publish(__name__)
