// Sounds: recorded from the microphone, and turned into WAV files of 16 kHz, which the server takes.
const RATE = 16000, MOST_SECONDS = 480; // what a body of 16 MiB holds

export async function record() {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error('Browsers give the microphone only to pages of this machine, or with TLS.');
  let stream;
  try { stream = await navigator.mediaDevices.getUserMedia({audio: true}); } catch { throw new Error('The microphone was not allowed, or there is none.'); }
  const recorder = new MediaRecorder(stream), chunks = [], release = () => stream.getTracks().forEach(track => track.stop());
  const ended = new Promise(resolve => { recorder.onstop = () => { release(); resolve(new Blob(chunks, {type: recorder.mimeType})); }; });
  recorder.ondataavailable = event => chunks.push(event.data);
  recorder.start(1000);
  return {stop: () => { recorder.stop(); return ended; }, cancel: () => { if (recorder.state !== 'inactive') recorder.stop(); }};
}

// A WAV file stays as it is: the server reads all kinds of them.
export async function toWav(sound) {
  if (!sound) throw new Error('There is no sound yet: record something, or choose a file.');
  const content = await sound.arrayBuffer(), head = new TextDecoder('latin1').decode(content.slice(0, 12));
  if (head.startsWith('RIFF') && head.endsWith('WAVE')) return new Blob([content], {type: 'audio/wav'});
  let audio;
  try { audio = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(content); } catch { throw new Error('This browser cannot decode the sound; WAV always works.'); }
  if (audio.duration > MOST_SECONDS) throw new Error(`The sound has ${Math.round(audio.duration)} s; at most ${MOST_SECONDS} s can be sent from here.`);
  return wav(audio);
}

function wav(audio) { // 16 bits, all channels mixed into one
  const channels = Array.from({length: audio.numberOfChannels}, (_, i) => audio.getChannelData(i));
  const view = new DataView(new ArrayBuffer(44 + 2 * audio.length)), text = (at, word) => [...word].forEach((sign, i) => view.setUint8(at + i, sign.charCodeAt(0)));
  text(0, 'RIFF'); text(8, 'WAVEfmt '); text(36, 'data');
  for (const [at, value] of [[4, 36 + 2 * audio.length], [16, 16], [24, audio.sampleRate], [28, 2 * audio.sampleRate], [40, 2 * audio.length]]) view.setUint32(at, value, true);
  for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) view.setUint16(at, value, true);
  for (let i = 0; i < audio.length; i++) {
    const mean = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    view.setInt16(44 + 2 * i, 32767 * Math.max(-1, Math.min(1, mean)), true);
  }
  return new Blob([view], {type: 'audio/wav'});
}
