/* Show the chosen month in the strip of months, which is scrolled on narrow screens. */
"use strict";
document.querySelector(".months [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
