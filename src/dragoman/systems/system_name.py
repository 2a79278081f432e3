"""How the command line, `params.yaml` and results call a system and its policy: `system@policy+oracle:ROLE,...`."""

from __future__ import annotations

from dataclasses import dataclass

ORACLE = "oracle"
"""As a policy: oracle actions, out of the gold passages of the question."""
WITH_ORACLE = "+oracle:"
"""After a policy: the roles, with commas between them, in which the oracle takes its place."""


@dataclass(frozen=True)
class SystemName:
    """A system, and who decides in it."""

    system: str
    policy: str = ""
    """A version, a stage, a folder, or `oracle`; empty for the untrained base."""
    oracle_roles: tuple[str, ...] = ()
    """The roles in which an oracle decides, and not the policy."""

    @classmethod
    def parse(cls, name: str) -> SystemName:
        """Read a name. Whether there is such a system, policy or role is for others to say."""
        system, _, decides = name.partition("@")
        policy, _, roles = decides.partition(WITH_ORACLE)
        return cls(system, policy, tuple(filter(None, roles.split(","))))

    def __str__(self) -> str:
        oracle = WITH_ORACLE + ",".join(self.oracle_roles) if self.oracle_roles else ""
        return f"{self.system}@{self.policy}{oracle}" if self.policy or oracle else self.system

    @property
    def is_oracle(self) -> bool:
        """Whether an oracle decides in every role."""
        return self.policy == ORACLE and not self.oracle_roles

    @property
    def needs_gold(self) -> bool:
        """Whether an oracle decides anywhere, which it does by the gold passages of a question."""
        return self.policy == ORACLE or bool(self.oracle_roles)
