"""The policy as a trainer sees it: the log-probabilities of actions, and what it takes to save and restore it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import UserError
from dragoman.engines.marks import yes_and_no
from dragoman.training.attention import registered
from dragoman.training.batch import Batch, MarkedBatch, unpack
from dragoman.training.settings import AdapterParams

OWN_LOGITS = ("logits_scaling", "logit_scale", "final_logit_softcapping")
"""By these names Granite, Cohere and Gemma 2 say what they do to the language head's logits."""


class ActionLogprobs(NamedTuple):
    """What the policy says about a actions of at most m tokens each, or choices at marks; 0 where there is none."""

    logprobs: Tensor
    """[a, m] of the distribution that was sampled from: restricted to the grammar, at the sampling temperature."""
    entropy: Tensor
    """[a, m] of the distribution that was sampled from, in nats."""
    features: Tensor
    """[a, m, hidden] the last hidden state that each token was predicted from: the state s_{t,m} of a critic. At marks that of each
    option of a selection, and of the last option of a choice."""


def lora_config(adapter: AdapterParams, lm: Any) -> Any:
    """PEFT's own settings for an adapter on all linear layers of a model but its language head."""
    from peft import LoraConfig

    layers = int(lm.config.get_text_config().num_hidden_layers)
    first = 0 if adapter.layers is None else max(0, layers - adapter.layers)
    head = lm.get_output_embeddings()
    linear = {name.rpartition(".")[2] for name, m in lm.named_modules() if isinstance(m, nn.Linear) and m is not head}
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=0.0,  # the ratio of PPO compares two passes, which must differ by the weights alone
        target_modules=sorted(linear),
        layers_to_transform=list(range(first, layers)) if first else None,
        task_type="CAUSAL_LM",
    )


class Trainable(nn.Module):
    """A module of which some weights are trained: those alone are saved and restored."""

    def trainable(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    def state(self) -> dict[str, Tensor]:
        """The trained weights, by name."""
        return {n: p.detach().cpu().clone() for n, p in self.named_parameters() if p.requires_grad}

    def load_state(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(state[name])


class Actor(Trainable):
    """A causal language model with a LoRA adapter, or without one, which is then trained whole.

    Args:
        folder: the model folder to start from.
        adapter: None to train all weights.
        device: where it runs.
        bf16: compute in bfloat16; the weights that are trained are float32 in any case.
    """

    def __init__(self, folder: Path, adapter: AdapterParams | None, device: torch.device, *, bf16: bool = True) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.folder = folder
        # Weights that are trained are float32, since steps of 1e-5 vanish in bfloat16; those that are frozen stay small.
        dtype = torch.bfloat16 if adapter is not None and bf16 else torch.float32
        lm: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=registered())
        lm.config.use_cache = False
        self._peft: Any = None
        if adapter is not None:
            from peft import get_peft_model
            from peft.tuners.lora import LoraLayer

            self._peft = get_peft_model(lm, lora_config(adapter, lm))
            lm = self._peft.get_base_model()
            # Autocast would undo what a layer casts: two copies of each input, for nothing.
            for layer in (module for module in lm.modules() if isinstance(module, LoraLayer)):
                layer.cast_input_dtype_enabled = False
        self.lm = lm.to(device).train()
        self.bf16 = bf16
        self.device = device
        self.vocabulary = int(lm.config.get_text_config().vocab_size)
        self.hidden = int(lm.config.get_text_config().hidden_size)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.yes_and_no = yes_and_no(lambda text: tokenizer.encode(text, add_special_tokens=False))

    def forward(self, batch: Batch | MarkedBatch, temperature: float = 1.0) -> ActionLogprobs:
        return self._marked(batch, temperature) if isinstance(batch, MarkedBatch) else self._written(batch, temperature)

    def _marked(self, batch: MarkedBatch, temperature: float) -> ActionLogprobs:
        """The policy at marks is exact: a softmax over options, or a sigmoid at each; see `rollout.choosing`."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            states = self.lm.model(input_ids=batch.input_ids.to(self.device)).last_hidden_state
        yes, no = self.yes_and_no
        head = self.lm.lm_head.weight
        features = states[batch.row.to(self.device), batch.position.to(self.device)].float()
        logits = (features @ (head[yes].float() - head[no].float()) + batch.bias.to(self.device)) / temperature
        options, taken = batch.options.to(self.device), batch.taken.to(self.device)
        many, mask = batch.many.to(self.device)[:, None], batch.mask.to(self.device)
        each = nn.functional.logsigmoid(torch.where(taken, logits, -logits))
        choice = logits.masked_fill(~options, -torch.inf).log_softmax(-1)
        one = choice.masked_fill(~taken, 0.0).sum(-1, keepdim=True)
        entropy_each = -(
            nn.functional.logsigmoid(logits) * logits.sigmoid()
            + nn.functional.logsigmoid(-logits) * (-logits).sigmoid()
        )
        entropy_one = -(choice.exp() * choice.clamp(min=-1e4)).sum(-1, keepdim=True)
        m = mask.shape[1]
        logprobs = torch.where(many, each[:, :m], one) * mask
        entropy = torch.where(many, entropy_each[:, :m], entropy_one) * mask
        # A choice is valued where all of its options have been read, which is at the last one's mark.
        last = (options.sum(-1) - 1).clamp(min=0)
        read = features.gather(1, last[:, None, None].expand(-1, 1, features.shape[-1]))
        return ActionLogprobs(logprobs, entropy, torch.where(many[..., None], features[:, :m], read))

    def _written(self, batch: Batch, temperature: float) -> ActionLogprobs:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            states = self.lm.model(
                input_ids=batch.input_ids.to(self.device),
                position_ids=batch.position_ids.to(self.device),
                attention_mask=batch.attention.to(self.device),
            ).last_hidden_state
            mask = batch.mask.to(self.device)
            features = states[batch.row.to(self.device), batch.position.to(self.device)]
            logits = self.lm.lm_head(features[mask])  # the vocabulary is large: only where an action's token follows
        logits, targets = logits.float() / temperature, batch.targets.to(self.device)[mask][:, None]
        if batch.allowed is not None:
            bits = batch.allowed.to(self.device)[mask]
            logits = logits.masked_fill(~unpack(bits, self.vocabulary), -torch.inf)
        sampled = logits.log_softmax(-1)
        entropy = -(sampled.exp() * sampled.clamp(min=-1e4)).sum(-1)

        def lay_out(values: Tensor) -> Tensor:
            return torch.zeros(mask.shape, device=self.device).masked_scatter(mask, values)

        return ActionLogprobs(lay_out(sampled.gather(-1, targets)[:, 0]), lay_out(entropy), features.float())

    def check_written(self) -> None:
        """Whether `forward` computes what the model itself does, where actions are written and siblings share a row.

        Raises:
            UserError: the model changes its logits after the language head, or has layers that do not attend to all tokens.
        """
        config = self.lm.config.get_text_config()
        unlike = [name for name in OWN_LOGITS if getattr(config, name, None) not in (None, 1, 1.0)]
        if set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
            unlike.append("layer_types")
        if unlike:
            raise UserError(
                f"{self.folder}/config.json: {unlike[0]} is {getattr(config, unlike[0])}, which the trainer does not compute where actions "
                "are written; score options (decide: marks), or take another proxy"
            )

    @property
    def has_adapter(self) -> bool:
        return self._peft is not None

    def without_adapter(self) -> AbstractContextManager[Any]:
        """Within it, a policy with an adapter is the model of `folder`; one without stays as it is."""
        return self._peft.disable_adapter() if self._peft is not None else nullcontext()

    def save(self, folder: Path) -> None:
        """Write what `export` reads: the adapter, or all weights where there is none."""
        if self._peft is None:
            self.lm.save_pretrained(folder)
        else:
            self._peft.save_pretrained(folder, save_embedding_layers=False)


class Critic(Trainable):
    """V(s_{t,m}): the expected credit of an action, read off the state before each of its tokens.

    Either a linear head on the policy's last hidden states, whose gradient stops there. Or a model of its own, whose
    language head is replaced by a value head, as in the paper (appendix A.2).
    """

    def __init__(self, actor: Actor, *, separate: bool, adapter: AdapterParams | None) -> None:
        super().__init__()
        self.trunk = Actor(actor.folder, adapter, actor.device, bf16=actor.bf16) if separate else None
        self.norm = nn.LayerNorm(actor.hidden, elementwise_affine=False)
        self.head = nn.Linear(actor.hidden, 1)
        nn.init.zeros_(self.head.weight)
        self.to(actor.device)

    def forward(self, batch: Batch | MarkedBatch, policy: ActionLogprobs) -> Tensor:
        """[a, m] values, 0 where there is no token."""
        features = policy.features.detach() if self.trunk is None else self.trunk(batch).features
        values = self.head(self.norm(features))[..., 0]
        return values * batch.mask.to(values.device)
