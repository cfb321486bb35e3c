"use strict";
// The commands name the address at which the page was opened, which a proxy may have changed.
for (const place of document.querySelectorAll(".address")) place.textContent = new URL(".", location.href).href;
