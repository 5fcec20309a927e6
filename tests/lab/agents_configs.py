"""Configuration of the real agents that makes them talk to the stand-in."""

CODEX_CONFIG = """model = "stand-in"
model_provider = "stand-in"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.stand-in]
name = "stand-in"
base_url = "{url}/v1"
env_key = "STAND_IN_KEY"
wire_api = "responses"
"""
GEMINI_SETTINGS = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "telemetry": {"enabled": False},
                   "privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}

QWEN_SETTINGS = {"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False},
                 "general": {"disableAutoUpdate": True, "enableAutoUpdate": False}, "telemetry": {"enabled": False}}
# Beginnings of the reports of tool calls.
MARKS = {"claude": ("Read:", "Write:", "Bash:"), "codex": ("exec:",),
         "gemini": ("read_file:", "write_file:", "run_shell_command:"), "opencode": ("read:", "write:", "bash:"),
         **dict.fromkeys(("gemini-acp", "opencode-acp", "qwen"), ("read:", "edit:", "execute:"))}


def program_of(agent: str) -> str:
    """The program that carries out an agent."""
    return agent.removesuffix("-acp")


def opencode_config(url: str) -> dict:
    model = "anthropic/claude-sonnet-4-5"
    options = {"baseURL": f"{url}/v1", "apiKey": "sk-stand-in"}
    return {"autoupdate": False, "share": "disabled", "model": model, "small_model": model,
            "provider": {"anthropic": {"options": options}}}
