"""Models for speech, and what they need of sound: WAV files, sample rates, voice activity."""
