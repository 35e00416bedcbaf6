// The data of the page: inflates the packed document (see report/pack.py) and computes times by site and by stack.

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

// Adds accessors for frames to the document.
function complete(data) {
  const { frames, sites } = data;
  data.isUser = (frame) => data.user[sites.file[frames.site[frame]]];
  data.path = (frame) => {
    const path = [];
    for (; frame !== NO_STACK; frame = frames.parent[frame]) path.push(frame);
    return path.reverse();
  };
  data.fileOf = (frame) => data.files[sites.file[frames.site[frame]]];
  data.lineOf = (frame) => sites.line[frames.site[frame]];
  data.functionOf = (frame) => data.functions[sites.function[frames.site[frame]]];
  // The user line of a stack: its innermost frame of user code, or its innermost frame if there is none.
  data.userFrame = (frame) => {
    for (let outer = frame; outer !== NO_STACK; outer = frames.parent[outer]) if (data.isUser(outer)) return outer;
    return frame;
  };
  return data;
}

// Computes `places`, the time of every line, and `stacks`, with the time of fusions split over their parts or not.
function apportion(data, fusion) {
  data.fusion = fusion;
  data.places = new Map();
  const stacks = (data.stacks = data.shares[fusion]);
  for (let i = 0; i < stacks.frame.length; i++) {
    const frame = stacks.frame[i];
    if (frame === NO_STACK) continue;
    const ns = stacks.direct_ns[i] + stacks.inferred_ns[i];
    const userLine = placeOf(data, data.userFrame(frame));
    userLine.self += ns;
    userLine.busy += stacks.busy_ns?.[i] ?? 0;
    userLine.inferred += stacks.inferred_ns[i];
    userLine.stacks.push([frame, ns]);
    for (const place of new Set(data.path(frame).map((outer) => placeOf(data, outer)))) place.total += ns;
  }
  noteMerged(data);
  return data;
}

// Notes at each line whose operations XLA computes elsewhere (`keptAt`), and of which others it computes (`merged`).
function noteMerged(data) {
  const { frame, kept, operations } = data.merged;
  for (let i = 0; i < frame.length; i++) {
    if (!operations[i] || frame[i] === NO_STACK || kept[i] === NO_STACK) continue;
    const left = placeOf(data, data.userFrame(kept[i])), gone = placeOf(data, data.userFrame(frame[i]));
    left.merged.set(gone, (left.merged.get(gone) ?? 0) + operations[i]);
    gone.keptAt.set(left, (gone.keptAt.get(left) ?? 0) + operations[i]);
  }
}

function placeOf(data, frame) {
  const file = data.fileOf(frame), line = data.lineOf(frame), key = `${file}:${line}`;
  let place = data.places.get(key);
  if (!place) {
    place = { key, file, line, function: data.functionOf(frame), user: data.isUser(frame), self: 0, busy: 0, inferred: 0, total: 0, stacks: [], merged: new Map(), keptAt: new Map() };
    data.places.set(key, place);
  }
  return place;
}
