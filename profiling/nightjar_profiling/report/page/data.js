// What was captured? Inflates the packed document (see report/pack.py) and works out times by site and by stack.

async function inflate(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const end = 4 + new DataView(buffer).getUint32(0, true);
  const start = Math.ceil(end / 8) * 8;
  const kinds = { Float64Array, Int32Array, Uint8Array };
  return JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, end - 4)), (key, value) => {
    if (value === null || typeof value !== "object" || !Array.isArray(value.$)) return value;
    const [kind, offset, length] = value.$;
    return new kinds[kind](buffer, start + offset, length);
  });
}

const NO_STACK = -1;

// Adds to the document what can be asked of a frame.
function complete(data) {
  const { frames, sites } = data;
  data.isUser = (frame) => data.user[sites.file[frames.site[frame]]];
  data.path = (frame) => {
    const found = [];
    for (; frame !== NO_STACK; frame = frames.parent[frame]) found.push(frame);
    return found.reverse();
  };
  data.fileOf = (frame) => data.files[sites.file[frames.site[frame]]];
  data.lineOf = (frame) => sites.line[frames.site[frame]];
  data.functionOf = (frame) => data.functions[sites.function[frames.site[frame]]];
  // The user's line of a stack: its innermost frame of the user's own code; where there is none, its innermost frame.
  data.userFrame = (frame) => {
    for (let one = frame; one !== NO_STACK; one = frames.parent[one]) if (data.isUser(one)) return one;
    return frame;
  };
  return data;
}

// Works out `places`, the time of every line, and `stacks`, with the time of fusions split over their parts or not.
function apportion(data, fusion) {
  data.fusion = fusion;
  data.places = new Map();
  const stacks = (data.stacks = data.shares[fusion]);
  for (let i = 0; i < stacks.frame.length; i++) {
    const frame = stacks.frame[i];
    if (frame === NO_STACK) continue;
    const ns = stacks.direct_ns[i] + stacks.inferred_ns[i];
    const mine = placeOf(data, data.userFrame(frame));
    mine.self += ns;
    mine.inferred += stacks.inferred_ns[i];
    mine.stacks.push([frame, ns]);
    for (const place of new Set(data.path(frame).map((one) => placeOf(data, one)))) place.total += ns;
  }
  return data;
}

function placeOf(data, frame) {
  const file = data.fileOf(frame), line = data.lineOf(frame), key = `${file}:${line}`;
  let place = data.places.get(key);
  if (!place) {
    place = { key, file, line, function: data.functionOf(frame), user: data.isUser(frame), self: 0, inferred: 0, total: 0, stacks: [] };
    data.places.set(key, place);
  }
  return place;
}
