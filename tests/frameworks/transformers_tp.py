"""Hugging Face transformers: a small Llama, made from a config, in parts on two ranks (``tp_plan="auto"``)."""

import sys
import tempfile

import torch
import torch.distributed as dist
from framework_report import bits, report
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SMALL = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(SMALL).save_pretrained(folder)  # each rank its own copy of the same weights
        if sys.argv[1] != "gloo":  # transformers makes the group of gloo itself
            dist.init_process_group(sys.argv[1])
        model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    prompt = torch.arange(16).view(1, -1)
    with torch.no_grad():
        logits = model(prompt).logits
        tokens = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    projection = model.model.layers[0].self_attn.q_proj.weight
    local = projection.to_local() if hasattr(projection, "to_local") else projection
    report(logits=bits([logits]), tokens=tokens.tolist(), rows=local.shape[0])
    dist.destroy_process_group()


main()
