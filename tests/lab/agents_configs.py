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


def opencode_config(url: str) -> dict:
    model = "anthropic/claude-sonnet-4-5"
    options = {"baseURL": f"{url}/v1", "apiKey": "sk-stand-in"}
    return {"autoupdate": False, "share": "disabled", "model": model, "small_model": model,
            "provider": {"anthropic": {"options": options}}}
