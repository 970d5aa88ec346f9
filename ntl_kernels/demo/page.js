// The page of the demo: Python computes, this draws.

// The response to a request, or {problem: a sentence}.
async function post(path, body) {
  try {
    return await (await fetch(path, { method: 'POST', body })).json();
  } catch {
    return { problem: 'The demo does not respond: is it still running?' };
  }
}

// One request at a time, repeated if something changed meanwhile: a slow response is never drawn over a later one.
// Then, with the answer to what is shown, what comes next.
function newest(section, ask, next = () => {}) {
  let asking = false, changed = false;
  return async () => {
    changed = true;
    if (asking) return;
    asking = true;
    section.setAttribute('aria-busy', 'true');
    while (changed) {
      changed = false;
      await ask();
    }
    asking = false;
    section.setAttribute('aria-busy', 'false');
    next();
  };
}

// Only a change is written: a screen reader reads each.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function picture(section) {
  const SMALLEST = 0.005, LARGEST = 0.95;  // how far a bar can be dragged
  const FULL = 0.75;  // of the plot: a bar of probability 1
  const STEPS = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1,
    Home: -1, End: 1 };
  const isCalm = matchMedia('(prefers-reduced-motion: reduce)').matches;
  const PAUSE = isCalm ? 1000 : 150;  // milliseconds between two steps of a run
  const END = 0.014;  // the gradients at which a run ends: their arrows are too short to see
  const find = selector => section.querySelector(selector);
  const first = JSON.parse(section.dataset.first), form = find('form'), table = find('tbody'), typed = find('.numbers-form');
  let { heights, label } = first, answer = {}, isPlaying = false, owed = 0, pause;

  const columns = first.tokens.map(token => {
    const column = find('template').content.firstElementChild.cloneNode(true);
    const part = selector => column.querySelector(selector);
    part('.bar').setAttribute('aria-label', `Probability of ${token}`);
    part('input').setAttribute('aria-label', `The label is ${token}`);
    part('label').title = `Make ${token} the label`;
    part('span').textContent = token;
    find('.bars').append(column);
    const cells = [...find('thead').rows[0].cells].map(() => document.createElement('td'));
    table.insertRow().append(...cells);
    return { column, cells, plot: part('.plot'), bar: part('.bar'), input: part('input'),
      pushes: [...column.querySelectorAll('.push')] };
  });

  // An arrow of this length that points down to y = length, or up to y = 0.
  function arrow(length, width, down) {
    const head = Math.min(0.55 * width, length), shaft = width * 0.2;
    const points = [[0.5 * width, 0], [width - 1, head], [0.5 * width + shaft, head], [0.5 * width + shaft, length],
      [0.5 * width - shaft, length], [0.5 * width - shaft, head], [1, head]];
    return 'M' + points.map(([x, distance]) => `${x} ${down ? length - distance : distance}`).join('L') + 'Z';
  }

  function drawPushes(pushes, sizes, top, unit, width) {
    pushes.forEach((svg, which) => {
      const length = Math.abs(sizes[which]) * unit;
      svg.setAttribute('width', width);
      svg.setAttribute('height', Math.max(length, 1));
      svg.style.bottom = `${top + 5}px`;
      svg.style.visibility = length < 2 ? 'hidden' : 'visible';
      svg.dataset.push = sizes[which];
      svg.firstElementChild.setAttribute('d', arrow(length, width, sizes[which] < 0));
    });
  }

  function shape(name, attributes, text = '') {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  }

  // The losses over the digit, below its bar, and the expected value on the same axis.
  function drawCurves() {
    const svg = find('.curves'), { curves, at, drawing, expected, mean } = answer;
    svg.replaceChildren();
    svg.style.visibility = curves ? 'visible' : 'hidden';
    if (!curves) return;
    svg.setAttribute('aria-label', `${drawing}; ${mean}`);
    const width = svg.clientWidth, height = svg.clientHeight - 26, top = Math.max(...curves.flat(), 0.1);
    const x = digit => (digit + 0.5) * width / columns.length, y = loss => 22 + (height - 24) * (1 - loss / top);
    svg.append(shape('line', { x1: 0, x2: width, y1: y(0), y2: y(0), class: 'axis' }));
    curves.forEach((losses, which) => {
      const name = which ? 'both' : 'alone', points = losses.map((loss, digit) => `${x(digit)},${y(loss)}`);
      svg.append(shape('polyline', { points: points.join(' '), class: name }));
      losses.forEach((loss, digit) => svg.append(shape('circle', { cx: x(digit), cy: y(loss), r: digit === at ? 5 : 2.5,
        class: name })));
    });
    if (at < curves[0].length) {
      const [alone, both] = curves.map(losses => losses[at]), below = Math.min(y(alone) + 18, y(0) - 6);
      svg.append(shape('text', { x: x(at), y: below, class: 'alone' }, alone.toFixed(2)),
        shape('text', { x: x(at), y: Math.min(y(both) - 8, below - 14), class: 'both' }, both.toFixed(2)));
    }
    const middle = x(expected), side = Math.min(Math.max(middle, 80), width - 80);
    svg.append(shape('path', { d: `M${middle} ${y(0) + 2}l5 8h-10z`, class: 'mean' }),
      shape('text', { x: side, y: y(0) + 24, class: 'mean' }, mean));
  }

  function fill(body, rows, chosen) {
    body.replaceChildren(...rows.map(cells => {
      const row = document.createElement('tr');
      for (const cell of cells) row.insertCell().textContent = cell;
      row.classList.toggle('chosen', cells[0] === chosen);
      return row;
    }));
  }

  // Without an answer, there are no arrows and no numbers.
  function draw() {
    const { problem = '', arrows = heights.map(() => [0, 0]), spoken = [], rows = [], loss = '', sum = '+ NTL' } = answer;
    const height = columns[0].plot.clientHeight, width = columns[0].plot.clientWidth < 64 ? 14 : 28;
    const tops = heights.map(share => Math.max(3, share * FULL * height));
    const room = arrows.flatMap((sizes, k) => sizes.map(size => (height - tops[k] - 6) / Math.abs(size)));
    const unit = Math.min(0.42 * height, ...room);
    columns.forEach(({ column, cells, bar, input, pushes }, k) => {
      column.classList.toggle('true', k === label);
      column.dataset.share = heights[k];
      input.checked = k === label;
      bar.style.height = `${tops[k]}px`;
      bar.setAttribute('aria-valuenow', (100 * heights[k]).toFixed(1));
      bar.setAttribute('aria-valuetext', spoken[k] ?? '');
      drawPushes(pushes, arrows[k], tops[k], unit, width);
      cells.forEach((cell, place) => { cell.textContent = rows[k]?.[place] ?? ''; });
      cells[0].parentElement.classList.toggle('true', k === label);
    });
    for (const output of form.querySelectorAll('output')) {
      const { name, value } = form.elements[output.htmlFor.value];
      say(output, name === 'squash_factor' && value === '1' ? 'off' : Number(value).toFixed(2));
    }
    find('.loss').ariaLive = isPlaying ? 'off' : 'polite';
    const { read = '', off = '', wrong = 'a wrong token' } = answer, play = isPlaying ? 'Pause' : 'Play';
    for (const [name, text] of Object.entries({ problem, loss, sum, read, wrong, off, play })) say(find(`.${name}`), text);
    fill(find('.kinds tbody'), answer.kinds ?? [], form.elements.kind.value);
    fill(find('.digits tbody'), answer.digits ?? []);
    drawCurves();
  }

  const ask = newest(section, async () => {
    const { kind, weight, squash_factor, label_sigma, reweigh } = form.elements;
    const squash = squash_factor.valueAsNumber;
    answer = await post('picture', JSON.stringify({ heights, label, kind: kind.value, weight: weight.valueAsNumber,
      reweigh: reweigh.checked, squash_factor: squash > 1 ? squash : null, label_sigma: label_sigma.valueAsNumber,
      numbers: [typed.elements.number.value.trim(), typed.elements.guess.value.trim()] }));
    draw();
  }, () => {
    if (owed && answer.step) return step();
    owed = 0;
    if (!isPlaying) return;
    isPlaying = Boolean(answer.arrows?.some(([, both]) => Math.abs(both) > END));
    if (isPlaying) pause = setTimeout(step, PAUSE);
    else draw();
  });

  // From the answer to what is shown.
  function step() {
    owed = Math.max(0, owed - 1);
    heights = answer.step;
    change();
  }

  function begin(bars) {
    ({ label } = first);
    heights = bars;
    owed = 0;
    clearTimeout(pause);
  }

  function change() {
    clearTimeout(pause);
    draw();
    ask();
  }

  // The other tokens share the rest in the same proportions.
  function raise(k, wanted) {
    const share = Math.min(LARGEST, Math.max(SMALLEST, wanted)), rest = heights.reduce((a, b) => a + b) - heights[k];
    heights = heights.map((height, place) => place === k ? share : Math.max(1e-6, height * (1 - share) / rest));
    change();
  }

  columns.forEach(({ plot, bar, input }, k) => {
    let grip = null;
    bar.addEventListener('pointerdown', event => {
      if (event.button !== 0) return;
      grip = { y: event.clientY, share: heights[k] };
      bar.setPointerCapture(event.pointerId);
      bar.focus({ preventScroll: true });
      event.preventDefault();
    });
    bar.addEventListener('pointermove', event => {
      if (grip) raise(k, grip.share + (grip.y - event.clientY) / (FULL * plot.clientHeight));
    });
    for (const end of ['pointerup', 'pointercancel']) bar.addEventListener(end, () => { grip = null; });
    bar.addEventListener('keydown', event => {
      if (!(event.key in STEPS) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      raise(k, heights[k] + STEPS[event.key]);
    });
    input.addEventListener('change', () => {
      label = k;
      change();
    });
  });
  for (const button of find('[aria-label="Predictions"]').children) {
    button.addEventListener('click', () => {
      begin(first.presets[button.textContent]);
      change();
    });
  }
  find('.step').addEventListener('click', () => {
    owed += 1;
    change();
  });
  find('.play').addEventListener('click', () => {
    isPlaying = !isPlaying;
    change();
  });
  for (const each of [form, typed]) each.addEventListener('input', change);
  form.addEventListener('reset', () => {
    begin(first.heights);
    isPlaying = false;
    setTimeout(change);  // the controls are reset after this event
  });
  new ResizeObserver(draw).observe(find('.bars'));
  ask();
}

function tokenizer(section) {
  const find = selector => section.querySelector(selector), form = find('form');

  function show(answer) {
    for (const name of ['source', 'problem', 'words', 'call', 'numbers']) find(`.${name}`).textContent = answer[name] ?? '';
    find('.verdict').hidden = !answer.words;
    find('.verdict').classList.toggle('good', answer.good === true);
    find('.verdict i').textContent = answer.good ? '✓' : '!';
    find('.numbers').hidden = !answer.numbers;
  }

  const examine = newest(section, async () => {
    const { file: { files: [file] }, digits_only, space_prefixed, vocab_size } = form.elements;
    if (!file) return show({});
    show({ source: `Reading ${file.name} …` });
    const question = new URLSearchParams({ name: file.name, size: file.size, digits_only: digits_only.checked,
      space_prefixed: space_prefixed.checked, vocab_size: vocab_size.value });
    show(await post(`tokenizer?${question}`, file.size > Number(section.dataset.mostBytes) ? null : file));
  });
  form.addEventListener('input', examine);
  form.addEventListener('submit', event => event.preventDefault());
}

picture(document.querySelector('#picture'));
tokenizer(document.querySelector('#tokenizer'));
