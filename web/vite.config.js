import { defineConfig } from "vite";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { viteSingleFile } from "vite-plugin-singlefile";

// Every browser that runs this page reads woff2; the other font files would triple the bundle.
const onlyWoff2 = {
  name: "only-woff2",
  enforce: "pre",
  transform(code, id) {
    if (!id.includes("katex.min.css")) return null;
    return code.replace(/,url\([^)]*\.(woff|ttf)\) format\("[a-z]+"\)/g, "");
  },
};

// One file, which the server embeds and serves at /.
export default defineConfig({
  plugins: [onlyWoff2, svelte(), viteSingleFile()],
  base: "./",
  build: { outDir: "../crates/server/page", emptyOutDir: true, assetsInlineLimit: 1e8, target: "es2022" },
  server: { proxy: { "/v1": "http://127.0.0.1:8080", "/props": "http://127.0.0.1:8080" } },
});
