// Numbers as they are read.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => whole.format(number);
export const brief = (number) => (number < 10_000 ? whole.format(number) : short.format(number));
export const percent = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(1)} %` : "–");
export const bytes = (number) =>
  number < 2 ** 20 ? `${(number / 2 ** 10).toFixed(0)} KiB`
  : number < 2 ** 30 ? `${(number / 2 ** 20).toFixed(0)} MiB` : `${(number / 2 ** 30).toFixed(1)} GiB`;

export function seconds(number) {
  if (number === null || !Number.isFinite(number)) return "–";
  if (number < 0.9995) return `${(1000 * number).toFixed(0)} ms`;
  if (number < 10) return `${number.toFixed(2)} s`;
  if (number < 120) return `${number.toFixed(0)} s`;
  if (number < 7200) return `${(number / 60).toFixed(0)} min`;
  if (number < 172_800) return `${(number / 3600).toFixed(0)} h`;
  return `${(number / 86_400).toFixed(0)} days`;
}

// How long ago, to the second.
export const age = (number) => (number < 120 ? `${Math.ceil(number)} s` : seconds(number));

export const clock = (atS, withSeconds = false) =>
  new Date(1000 * atS).toLocaleTimeString([], {
    hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined, hour12: false,
  });

export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
