// Requests to the driver. They show the token, which `holdfast dashboard` passes in the address: without it nothing can be
// changed, and data of records is not shown.

const KEY = "holdfast-token";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function takeToken() {
  const [path, query] = location.hash.split("?");
  const token = new URLSearchParams(query || "").get("token");
  if (token) {
    sessionStorage.setItem(KEY, token);
    history.replaceState(null, "", path); // the token leaves the address, so that nobody reads or copies it there
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(KEY));

export const setToken = (token) => sessionStorage.setItem(KEY, token.trim());

export async function ask(path, method = "GET", body) {
  const request = { method, headers: {}, cache: "no-store" };
  if (hasToken()) request.headers.authorization = "Bearer " + sessionStorage.getItem(KEY);
  if (method !== "GET") {
    request.body = JSON.stringify(body || {});
  }
  const answer = await fetch(path, request);
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    if (answer.status === 401) sessionStorage.removeItem(KEY);
    throw new Refused(answer.status, (said.errors || [`The driver answered with status ${answer.status}`]).join("; "));
  }
  return said;
}
