// Asks the router this page came from.

const TIMEOUT_MS = 10_000;
const EXPLAIN_TIMEOUT_MS = 35_000;

export class SignedOut extends Error {}
// It answered, and said no.
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}
// It did not answer.
export class Away extends Error {}

async function fetched(path, options, timeoutMs) {
  let response;
  let body;
  try {
    response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(timeoutMs), ...options });
    body = await response.json();
  } catch (error) {
    throw new Away(error.message);
  }
  if (response.ok) return body;
  const said = body.error ?? response.statusText;
  throw response.status === 401 ? new SignedOut(said) : new Refused(said, response.status);
}

export function ask(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null);
  return fetched(`api/${name}?${new URLSearchParams(given)}`, {}, TIMEOUT_MS);
}

export function post(name, body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return fetched(`api/${name}`, options, name === "explain" ? EXPLAIN_TIMEOUT_MS : TIMEOUT_MS);
}
