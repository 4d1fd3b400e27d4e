// Sounds: recorded from the microphone, and turned into WAV files of 16 kHz, which the server takes.
const RATE = 16000, MOST_SECONDS = 480; // what a body of 16 MiB holds

export async function record() {
  const stream = await navigator.mediaDevices?.getUserMedia({audio: true}).catch(() => null);
  if (!stream) throw new Error('There is no microphone here, or it was not allowed. Pages from other machines need TLS for it.');
  const recorder = new MediaRecorder(stream), chunks = [];
  const ended = new Promise(resolve => recorder.addEventListener('stop', () => {
    stream.getTracks().forEach(track => track.stop());
    resolve(new Blob(chunks));
  }));
  recorder.ondataavailable = event => chunks.push(event.data);
  recorder.start();
  return {stop() { if (recorder.state !== 'inactive') recorder.stop(); return ended; }};
}

// A WAV file stays as it is: the server reads all kinds of them. Channels of others are mixed into one of 16 bits.
export async function toWav(sound) {
  if (!sound) throw new Error('There is no sound yet: record something, or choose a file.');
  const content = await sound.arrayBuffer();
  if (new TextDecoder('latin1').decode(content.slice(0, 4)) === 'RIFF') return new Blob([content]);
  const audio = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(content).catch(() => null);
  if (!audio) throw new Error('This browser cannot decode the sound; WAV always works.');
  if (audio.duration > MOST_SECONDS) throw new Error(`At most ${MOST_SECONDS} s of sound can be sent from here.`);
  const n = audio.length, samples = new Int16Array(n);
  const channels = Array.from({length: audio.numberOfChannels}, (_, i) => audio.getChannelData(i));
  for (let i = 0; i < n; i++) {
    const mean = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    samples[i] = 32767 * Math.max(-1, Math.min(1, mean));
  }
  // RIFF …, WAVEfmt …, PCM of one channel, data …; processors are little-endian, and so are these files.
  const head = [0x46464952, 36 + 2 * n, 0x45564157, 0x20746d66, 16, 1 | 1 << 16, RATE, 2 * RATE, 2 | 16 << 16, 0x61746164, 2 * n];
  return new Blob([Uint32Array.from(head), samples]);
}
