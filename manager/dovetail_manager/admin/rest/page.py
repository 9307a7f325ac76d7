"""A page that lists the operations of /openapi.json, with nothing from elsewhere."""

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Dovetail: REST</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
details { border-bottom: 1px solid #8884; padding: .3rem 0 }
summary { cursor: pointer } code, pre { font: 13px/1.4 ui-monospace, monospace }
b { display: inline-block; width: 4.5rem } pre { overflow: auto }
</style>
<h1>Dovetail: REST</h1>
<p>The full description is <a href="openapi.json">openapi.json</a>. Send the token as
<code>Authorization: Bearer …</code>.</p>
<main>loading</main>
<script>
const main = document.querySelector("main");
const element = (name, text) => Object.assign(document.createElement(name), {textContent: text});
fetch("openapi.json").then(answer => answer.json()).then(api => {
  main.textContent = "";
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, operation] of Object.entries(methods)) {
      const entry = document.createElement("details"), head = document.createElement("summary");
      head.append(element("b", method.toUpperCase()), element("code", path),
                  element("span", " " + (operation.description || operation.summary || "")));
      entry.append(head);
      for (const part of ["parameters", "requestBody", "responses"])
        if (operation[part])
          entry.append(element("p", part),
                       element("pre", JSON.stringify(operation[part], null, 1)));
      main.append(entry);
    }
  main.append(element("h2", "Schemas"), element("pre", JSON.stringify(api.components, null, 1)));
});
</script></html>
"""
