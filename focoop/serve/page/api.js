// Requests to the server, with the API key where one is needed.

const dialog = document.getElementById("key-dialog");
let key = sessionStorage.getItem("focoop-key") || "";
let asking = null; // one question for a key at a time

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.message);
    this.status = status;
    this.images = problem.images || [];
  }
}

function askForKey() {
  asking ??= new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      key = document.getElementById("key").value.trim();
      sessionStorage.setItem("focoop-key", key);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

// Fetch; asks for a key when the server wants one, and waits when it is busy.
export async function call(path, options = {}, tries = 4) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    await askForKey();
    return call(path, options, tries);
  }
  if (answer.status === 503 && tries > 1) {
    const pause = Number(answer.headers.get("Retry-After")) || 1;
    await new Promise((go) => setTimeout(go, 1000 * pause));
    return call(path, options, tries - 1);
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, body.error || { message: `the server answers ${answer.status}` });
  }
  return answer;
}

export async function get(path) {
  return (await call(path)).json();
}

export async function post(path, files, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  for (const file of files) form.append("images", file, file.name || "image.png");
  return (await call(path, { method: "POST", body: form })).json();
}
