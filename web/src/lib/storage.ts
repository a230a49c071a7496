// Conversations stay in this browser: in IndexedDB, or in memory where it is not allowed.

import type { Conversation } from "./conversation";

let opened: Promise<IDBDatabase | null> | undefined;

function open(): Promise<IDBDatabase | null> {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("puna", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

async function run<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const request = act(database.transaction("conversations", mode).objectStore("conversations"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export const load = async (): Promise<Conversation[]> =>
  ((await run("readonly", (store) => store.getAll())) ?? []).sort((a, b) => b.updated - a.updated);
export const save = (conversation: Conversation) => run("readwrite", (store) => store.put(conversation));
export const erase = (id: string) => run("readwrite", (store) => store.delete(id));
export const eraseAll = () => run("readwrite", (store) => store.clear());
