// SPDX-License-Identifier: MIT
// Figures as text, in the units of hmd's tables.

export let PAGE_BYTES = 4096;
export function setPageBytes(bytes) {
  PAGE_BYTES = bytes;
}

export function bytes(value) {
  if (value === null || value === undefined) return "-";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${size.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}
export const rate = (value) => (value === null ? "-" : `${bytes(value)}/s`);
export const share = (value) => (value === null || value === undefined ? "-" : `${(value * 100).toFixed(1)} %`);
export const count = (value) => value.toFixed(0).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
export const seconds = (value) => (Math.abs(value) >= 1 ? `${value.toFixed(3)} s` : `${(value * 1e3).toFixed(2)} ms`);
export const short = (value) => (value === 0 ? "0" : value >= 100 ? count(value) : value >= 0.01 ? String(Number(value.toPrecision(3))) : value.toExponential(1));
export const clock = (at_s) => new Date(at_s * 1000).toLocaleTimeString("en-GB");
export const ago = (age_s) => (age_s < 0.5 ? "now" : age_s < 90 ? `${age_s.toFixed(0)} s ago` : `${(age_s / 60).toFixed(1)} min ago`);
export function age(value) {
  const s = Math.floor(value);
  const two = (n) => String(n).padStart(2, "0");
  const hours = `${Math.floor((s % 86400) / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
  return s >= 86400 ? `${Math.floor(s / 86400)} d ${hours}` : hours;
}
