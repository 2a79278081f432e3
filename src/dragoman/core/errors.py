"""The few kinds of failure, by the boundary at which they happen.

`UserError` is for input that a person can correct: the command line prints its sentence and exits with code 2.
The others are faults of a call made for one question: they end that trajectory with a reason, never the run. Where a command can
do nothing without that call, they end it with exit code 1: a later try may pass, and a flow makes one.
"""


class UserError(Exception):
    """Bad input. The message names the file, line, key or URL, and says what to do."""


class Fault(Exception):
    """A call for one question failed for good, retries included."""


class EngineFault(Fault):
    """The engine (or the server behind it) gave no usable completion."""


class PromptTooLong(EngineFault):
    """What the model would have to read does not fit into its context, or what it may write into a grammar.

    The engine is well, and asking again is no use.
    """


class Refused(EngineFault):
    """A filter of the server's would not have the prompt read, or the completion written.

    The engine is well, and asking again is no use.
    """


class CannotExpress(EngineFault):
    """What an engine is asked has no form in its protocol, under the settings that it has. Asking again is no use."""


ASKED_IN_VAIN = (PromptTooLong, Refused, CannotExpress)
"""Faults of what is asked. A score or a label that met one stays open, and the next run does not try it again."""


class RetrieverFault(Fault):
    """The retriever (or the server behind it) gave no usable passages."""
